// Sections as GitHub-flavoured Markdown, fit for a pull-request comment.

import type { ReportTable, Section, Sentence } from './section.ts';

export function markdownOf(sections: readonly Section[]): string {
  const blocks: string[] = [];
  for (const section of sections) {
    const inner = [
      ...section.sentences.map(sentenceOf),
      ...section.tables.map((table) => tableOf(table)),
    ];
    if (section.title === undefined) blocks.push(...inner);
    else if (section.folded === true) {
      blocks.push(
        `<details><summary>${escapeHtml(section.title)}</summary>`,
        ...inner,
        '</details>',
      );
    } else blocks.push(`### ${escapeText(section.title)}`, ...inner);
  }
  return `${blocks.join('\n\n')}\n`;
}

function sentenceOf({ text, tone }: Sentence): string {
  if (tone === 'strong') return `**${escapeText(text)}**`;
  return tone === 'warning' ? `> ⚠ ${escapeText(text)}` : escapeText(text);
}

function tableOf({ columns, rows }: ReportTable): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
  return [
    line(columns.map(({ head }) => head)),
    line(columns.map(({ align }) => (align === 'right' ? '--:' : '---'))),
    ...rows.map((row) => line(row.map((cell) => escapeText(indent(cell))))),
  ].join('\n');
}

/** Leading blanks would be lost: nesting of phases is shown with em spaces. */
function indent(cell: string): string {
  return cell.replace(/^ +/, (blanks) => '\u2003'.repeat(blanks.length / 2));
}

/** Characters that Markdown would read as its own. `_` inside a word is none in GitHub's dialect. */
function escapeText(text: string): string {
  return text.replace(/[\\`*|<>]/g, (character) => `\\${character}`).replace(/\n/g, '<br>');
}

function escapeHtml(text: string): string {
  return text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}
