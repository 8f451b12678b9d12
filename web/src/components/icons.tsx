// The logo, and the line icons of the navigation and of message actions. Long conversations show hundreds of these icons, so each is a
// single SVG path instead of an antd icon.

import { memo } from "react";

const PATHS = {
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  close: "M4 4l8 8M12 4l-8 8",
  download: "M8 2.5v8M4.8 7.5L8 10.7l3.2-3.2M3 13.5h10",
  check: "M3 8.5l3.2 3.2L13 4.8",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.2v3h-3",
  fork: "M4.5 5.5v5M4.5 8h4a3 3 0 0 0 3-2.5M4.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM11.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM4.5 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z",
  clock: "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM8 5v3.2l2.2 1.3",
  edit: "M3 13l.6-2.8 7-7 2.2 2.2-7 7zM9.2 4.6l2.2 2.2",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3l3.2 3.2",
  plus: "M8 3v10M3 8h10",
  shield: "M8 2l5 2v3.5c0 3.2-2.1 5.4-5 6.5-2.9-1.1-5-3.3-5-6.5V4zM5.8 8l1.6 1.6 3-3.2",
  jobs: "M3 3.5h10v10H3zM3 6.5h10M6 2v3M10 2v3M6 10l1.4 1.4 2.8-2.6",
  agent: "M3.5 6h9v6.5h-9zM8 6V3.2M6.8 2.6h2.4M6 8.7v1.2M10 8.7v1.2M2 8.5v2M14 8.5v2",
  book: "M3 3h3.6A1.4 1.4 0 0 1 8 4.4v9a1.4 1.4 0 0 0-1.4-1.1H3zM13 3H9.4A1.4 1.4 0 0 0 8 4.4v9a1.4 1.4 0 0 1 1.4-1.1H13z",
  activity: "M2 8.5h2.6l1.8-5 3 9 1.8-4H14",
  gear: "M8 9.9a1.9 1.9 0 1 0 0-3.8 1.9 1.9 0 0 0 0 3.8zM8 12.2a4.2 4.2 0 1 0 0-8.4 4.2 4.2 0 0 0 0 8.4zM8 1.8v2M8 12.2v2M1.8 8h2M12.2 8h2M3.6 3.6L5 5M11 11l1.4 1.4M3.6 12.4L5 11M11 5l1.4-1.4",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  bell: "M4 11V7.5a4 4 0 0 1 8 0V11l1 1.2H3zM6.8 14h2.4",
  up: "M4.5 10L8 6.5l3.5 3.5",
  missing: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3l3.2 3.2M5.5 5.5l3 3M8.5 5.5l-3 3",
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
