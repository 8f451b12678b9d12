// How a turn stands, in a word and a colour.

import { Tag } from "antd";
import type { RunShape } from "../wire";

const COLOURS: Record<RunShape["status"], string> = {
  queued: "default",
  running: "processing",
  waiting: "warning",
  done: "success",
  failed: "error",
  cancelled: "default",
};
const WORDS: Record<RunShape["status"], string> = {
  queued: "waits",
  running: "under way",
  waiting: "asks",
  done: "done",
  failed: "failed",
  cancelled: "stopped",
};

export const RunTag = ({ status }: { status: RunShape["status"] }) => (
  <Tag color={COLOURS[status]}>{WORDS[status]}</Tag>
);
