// Tables without borders: a head, a rule, rows. Columns are as wide as their widest cell; one column takes what is left and is
// cut in the middle, because both ends of a module name, a phase or a path carry meaning.

export interface TableColumn {
  readonly head: string;
  readonly align?: 'left' | 'right';
  /**
   * The column that gives way when the table would be wider than allowed, and where its text is cut. At most one; true is
   * `middle`.
   */
  readonly flexible?: boolean | 'middle' | 'end';
}

const GAP = '  ';
/** A column gives way down to this. */
const MIN_FLEXIBLE = 12;

/** Lines of the table, none wider than `width` columns as long as the fixed columns leave room. */
export function tableLines(
  columns: readonly TableColumn[],
  rows: readonly (readonly string[])[],
  width: number,
): string[] {
  const widths = columns.map((column, c) =>
    Math.max(column.head.length, ...rows.map((row) => row[c].length)),
  );
  const flexible = columns.findIndex(
    (column) => column.flexible !== undefined && column.flexible !== false,
  );
  const isText = (c: number) => columns[c].align !== 'right';
  const total = widths.reduce((sum, w) => sum + w, 0) + GAP.length * (columns.length - 1);
  let over = total - width;
  if (flexible >= 0 && over > 0) {
    const given = Math.min(over, Math.max(0, widths[flexible] - MIN_FLEXIBLE));
    widths[flexible] -= given;
    over -= given;
    // Not enough: the widest of the other columns of text gives, too.
    const widest = widths.reduce((best, w, c) => (isText(c) && w > widths[best] ? c : best), 0);
    if (over > 0 && isText(widest)) widths[widest] = Math.max(MIN_FLEXIBLE, widths[widest] - over);
  }
  const line = (cells: readonly string[]) =>
    columns
      .map((column, c) => {
        const cell = isText(c) ? cut(cells[c], widths[c], column.flexible) : cells[c];
        return column.align === 'right' ? cell.padStart(widths[c]) : cell.padEnd(widths[c]);
      })
      .join(GAP)
      .trimEnd();
  return [
    line(columns.map((column) => column.head)),
    widths.map((w) => '─'.repeat(w)).join(GAP),
    ...rows.map(line),
  ];
}

function cut(text: string, width: number, at: TableColumn['flexible']): string {
  if (at !== 'end') return cutMiddle(text, width);
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`;
}

/** `layers.11.attention.wq` cut to 15: `layers.…tion.wq`. */
export function cutMiddle(text: string, width: number): string {
  if (text.length <= width) return text;
  const tail = Math.floor((width - 1) / 2);
  return `${text.slice(0, width - 1 - tail)}…${text.slice(text.length - tail)}`;
}
