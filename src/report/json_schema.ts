// The published JSON schema (draft 2020-12) of `memtracker report --json`.

import { z } from 'zod';
import { reportDocumentSchema } from './document_schema.ts';

export function reportJsonSchema(): Record<string, unknown> {
  return {
    title: 'memtracker report',
    description:
      'Predicted (or measured) GPU memory of one rank of a training job. Sizes are bytes; null is a size that is not known, never zero.',
    ...z.toJSONSchema(reportDocumentSchema),
  };
}
