// Colours for code. The library comes when the first block of code is shown.

import type { Root } from "hast";

type Paint = (language: string, code: string) => Root | null;

let loading: Promise<Paint> | undefined;

export function painter(): Promise<Paint> {
  loading ??= import("./paint").then((module) => module.paint);
  return loading;
}
