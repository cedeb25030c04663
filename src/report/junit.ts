// JUnit XML, as CI systems read it: suites of test cases that pass, fail, break or are skipped. Written after the schema that Jenkins
// publishes for its xUnit plugin (junit-10.xsd); the attributes used are those that GitLab, GitHub actions and Jenkins all show.

export interface TestCase {
  /** Where it belongs: a file, a device, a variation. */
  readonly suite: string;
  readonly name: string;
  /** Absent for one that passed. */
  readonly outcome?: { readonly kind: 'failure' | 'error' | 'skipped'; readonly message: string };
  readonly seconds?: number;
  /** Free text that goes with the case. */
  readonly output?: string;
}

export function junitXml(name: string, cases: readonly TestCase[]): string {
  const suites = [...new Set(cases.map(({ suite }) => suite))].map((suite) => {
    const members = cases.filter((item) => item.suite === suite);
    const lines = members.flatMap((item) => caseLines(item));
    return [
      `  <testsuite ${attributes({ name: suite, ...counts(members) })}>`,
      ...lines,
      '  </testsuite>',
    ];
  });
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites ${attributes({ name, ...counts(cases) })}>`,
    ...suites.flat(),
    '</testsuites>',
    '',
  ].join('\n');
}

function caseLines({ suite, name, outcome, seconds, output }: TestCase): string[] {
  const head = `    <testcase ${attributes({ name, classname: suite, time: (seconds ?? 0).toFixed(3) })}`;
  const inner: string[] = [];
  if (outcome !== undefined) {
    const message = attributes({ message: outcome.message });
    inner.push(
      outcome.kind === 'skipped'
        ? `      <skipped ${message}/>`
        : `      <${outcome.kind} ${message}>${escapeXml(outcome.message)}</${outcome.kind}>`,
    );
  }
  if (output !== undefined) inner.push(`      <system-out>${escapeXml(output)}</system-out>`);
  return inner.length === 0 ? [`${head}/>`] : [`${head}>`, ...inner, '    </testcase>'];
}

function counts(cases: readonly TestCase[]): Record<string, string> {
  const of = (kind: string) => String(cases.filter(({ outcome }) => outcome?.kind === kind).length);
  const seconds = cases.reduce((sum, item) => sum + (item.seconds ?? 0), 0);
  return {
    tests: String(cases.length),
    failures: of('failure'),
    errors: of('error'),
    skipped: of('skipped'),
    time: seconds.toFixed(3),
  };
}

function attributes(values: Readonly<Record<string, string>>): string {
  return Object.entries(values)
    .map(([key, value]) => `${key}="${escapeXml(value)}"`)
    .join(' ');
}

/** Also drops the control characters that XML 1.0 cannot hold. */
function escapeXml(text: string): string {
  return (
    text
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is dropped
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, '')
      .replace(/&/g, '&amp;')
      .replace(/</g, '&lt;')
      .replace(/>/g, '&gt;')
      .replace(/"/g, '&quot;')
      .replace(/\n/g, '&#10;')
  );
}
