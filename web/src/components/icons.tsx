// The logo, and the line icons of message actions. Long conversations show hundreds of these icons, so each is a
// single SVG path instead of an antd icon.

import { memo } from "react";

const PATHS = {
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  check: "M3 8.5l3.2 3.2L13 4.8",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.2v3h-3",
  fork: "M4.5 5.5v5M4.5 8h4a3 3 0 0 0 3-2.5M4.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM11.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM4.5 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z",
  clock: "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM8 5v3.2l2.2 1.3",
  edit: "M3 13l.6-2.8 7-7 2.2 2.2-7 7zM9.2 4.6l2.2 2.2",
} as const;

export type IconName = keyof typeof PATHS;

export const Icon = memo(function Icon({ name }: { name: IconName }) {
  return (
    <svg className="line-icon" viewBox="0 0 16 16" aria-hidden>
      <path d={PATHS[name]} />
    </svg>
  );
});

export function Logo({ size = 24 }: { size?: number }) {
  return <img src="/logo.svg" width={size} height={size} alt="" className="logo" />;
}
