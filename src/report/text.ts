// Sections for a terminal.

import type { Section, Sentence } from './section.ts';
import { tableLines } from './table.ts';

export interface TextStyle {
  /** Columns that a line may take. */
  readonly width: number;
  readonly bold: (text: string) => string;
  readonly warn: (text: string) => string;
}

export const PLAIN_STYLE: TextStyle = { width: 100, bold: (text) => text, warn: (text) => text };

export function textOf(sections: readonly Section[], style: TextStyle = PLAIN_STYLE): string {
  const blocks: string[] = [];
  for (const section of sections) {
    if (section.title !== undefined) blocks.push(style.bold(section.title));
    if (section.sentences.length > 0) {
      blocks.push(section.sentences.map((sentence) => styled(sentence, style)).join('\n'));
    }
    for (const table of section.tables) {
      blocks.push(tableLines(table.columns, table.rows, style.width).join('\n'));
    }
  }
  return `${blocks.join('\n\n')}\n`;
}

function styled({ text, tone }: Sentence, style: TextStyle): string {
  const lines = wrap(text, style.width);
  if (tone === 'strong') return lines.map(style.bold).join('\n');
  if (tone === 'warning') return lines.map(style.warn).join('\n');
  return lines.join('\n');
}

/** Breaks at blanks; a word longer than the line stands alone. */
function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const paragraph of text.split('\n')) {
    let line = '';
    for (const word of paragraph.split(' ')) {
      if (line !== '' && line.length + 1 + word.length > width) {
        lines.push(line);
        line = word;
      } else {
        line = line === '' ? word : `${line} ${word}`;
      }
    }
    lines.push(line);
  }
  return lines;
}
