// docs/cli.md, written from the same rows as `--help` (scripts/generate_docs.ts; a test fails when it is stale).

import type { Adapter } from '../sidecar/adapter.ts';
import type { Command } from './command.ts';
import { describeRow } from './command_line.ts';
import { optionName } from './option.ts';

const HEADER = `# Command line

This page is generated from the option tables in \`src/cli/commands/\` by \`npm run generate\`.

What a command produces goes to stdout; notes, progress and errors go to stderr. Every command takes \`-q, --quiet\` (no notes,
no progress) and \`--help\`. Colours appear only on a terminal and never when \`NO_COLOR\` is set.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | a limit was passed: \`fit\` found that it does not fit, \`compare --fail-above\` was passed |
| 2 | done, but parts are not covered: traced with unknown operators or assumptions; \`report\` of a trace that is not whole or of a run that failed; \`fit\`: unproven |
| 3 | the command line, a file or the environment is wrong; the message says what to do |
| 4 | the training code itself failed; what was traced up to then is kept |
| 130 | ended by Ctrl-C |
`;

/** The whole page. `adapters` give the options that `--option` takes. */
export function commandLineDocs(
  commands: readonly Command[],
  adapters: readonly Adapter[],
): string {
  const sorted = [...commands].sort((a, b) => a.name.localeCompare(b.name));
  const index = sorted.map(
    (command) =>
      `- [\`memtracker ${command.name}\`](#memtracker-${command.name.replaceAll(' ', '-')}): ${command.summary}`,
  );
  return `${[HEADER, index.join('\n'), ...sorted.map(section), adapterOptions(adapters)].join('\n')}\n`;
}

function adapterOptions(adapters: readonly Adapter[]): string {
  const lines = ['', '## Options of the adapters', '', 'Given with `--option NAME=VALUE`.'];
  for (const { manifest } of adapters) {
    lines.push('', `### ${manifest.name}`, '', `${manifest.summary}.`);
    lines.push('', '| option | meaning | default |', '|---|---|---|');
    for (const [name, option] of Object.entries(manifest.options)) {
      const values = option.values === undefined ? '' : ` (${option.values.join(', ')})`;
      lines.push(
        `| \`${name}\` | ${cell(option.description + values)} | ${cell(option.default)} |`,
      );
    }
  }
  return lines.join('\n');
}

function section(command: Command): string {
  const lines = ['', `## memtracker ${command.name}`, '', '```', usage(command), '```', ''];
  lines.push(`${command.summary}.`);
  if (command.description !== undefined) lines.push('', command.description);
  lines.push('', '| option | meaning |', '|---|---|');
  for (const [key, row] of Object.entries(command.options)) {
    const value = row.value === undefined ? '' : ` ${row.value}`;
    const short = row.short === undefined ? '' : `-${row.short}, `;
    let name = `${short}${optionName(key)}${value}`;
    if (row.placement === 'passthrough') name = `-- ${row.value}`;
    if (row.placement === 'positional' || row.placement === 'positionals') name = row.value ?? key;
    lines.push(`| \`${cell(name)}\` | ${cell(describeRow(row))} |`);
  }
  if (Object.keys(command.options).length === 0) lines.splice(-3);
  if (command.examples.length > 0) {
    lines.push('', '```sh');
    for (const example of command.examples) {
      lines.push(`# ${example.description}`, `memtracker ${example.command}`);
    }
    lines.push('```');
  }
  return lines.join('\n');
}

function usage(command: Command): string {
  const parts = [`memtracker ${command.name} [options]`];
  for (const [key, row] of Object.entries(command.options)) {
    const name = row.value ?? key;
    const required = !row.schema.safeParse(undefined).success;
    if (row.placement === 'positional') parts.push(required ? name : `[${name}]`);
    if (row.placement === 'positionals') parts.push(required ? `${name}...` : `[${name}...]`);
    if (row.placement === 'passthrough') parts.push(`[-- ${name}]`);
  }
  return parts.join(' ');
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('\n', ' ');
}
