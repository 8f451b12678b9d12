// Names for pieces of the wire's shapes.

import type { ApprovalShape, MessageShape } from "../wire";

export type Part = MessageShape["parts"][number];
export type Decision = ApprovalShape["options"][number];
