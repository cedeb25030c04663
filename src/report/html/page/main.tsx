// Starts the page: shows at once that it is there, decodes the data, then draws.

import { render } from 'preact';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import { App } from './app.tsx';
import { decodePage } from './decode.ts';
import { DeviceModel } from './device_model.ts';

async function start(): Promise<void> {
  const root = document.getElementById('page');
  if (root === null) throw new Error('the page has no place to draw');
  try {
    const { payload, columns } = await decodePage();
    document.title = `memtracker: ${payload.title}`;
    if (payload.devices.length === 0) {
      root.textContent = 'No tensor was ever made on a GPU in this run.';
      return;
    }
    const models = payload.devices.map(
      (device, index) => new DeviceModel(device, columns[index], payload),
    );
    root.textContent = '';
    render(<App models={models} />, root);
    document.documentElement.dataset.ready = 'true';
  } catch (error) {
    root.textContent = `This report cannot be shown: ${String(error)}`;
  }
}

void start();
