// Colours of the page in both themes, and the theme of antd's components. styles/base.css defines the same colours as
// custom properties; theme.test.ts checks that both agree and that every pair has enough contrast.

import { type ThemeConfig, theme } from "antd";

const FONT = `system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, sans-serif`;
const CODE = `ui-monospace, SFMono-Regular, "SF Mono", Menlo, Consolas, "Noto Sans Mono", "DejaVu Sans Mono", monospace`;

/** A colour for text and icons, with the background and the border of areas that are tinted with it. */
interface Tint {
  color: string;
  bg: string;
  border: string;
}

export interface Palette {
  text: string;
  textSecondary: string;
  textTertiary: string;
  surface: string;
  layout: string;
  raised: string;
  /** Text on an area that is filled with the primary or the error colour. */
  onFill: string;
  controlBorder: string;
  hairline: string;
  primary: Tint & { bgHover: string; hover: string; active: string };
  info: Tint;
  success: Tint;
  warning: Tint;
  error: Tint;
  diff: { added: string; removed: string; addedWord: string; removedWord: string };
  /** Avatars and chart series, in this order. */
  series: readonly string[];
}

export const PALETTES: Record<"light" | "dark", Palette> = {
  light: {
    text: "#1d2421",
    textSecondary: "#4a544f",
    textTertiary: "#66706b",
    surface: "#ffffff",
    layout: "#f6f7f5",
    raised: "#ffffff",
    onFill: "#ffffff",
    controlBorder: "#8a948f",
    hairline: "#d9ddd9",
    primary: {
      color: "#1f6f5c",
      bg: "#e8f3ef",
      bgHover: "#d8eae4",
      border: "#a9d0c3",
      hover: "#195c4c",
      active: "#134a3d",
    },
    info: { color: "#1d5fa8", bg: "#eaf2fb", border: "#b5d1ee" },
    success: { color: "#22704a", bg: "#e7f4ec", border: "#a9d6bc" },
    warning: { color: "#8a5a0b", bg: "#fdf4e2", border: "#ecd3a1" },
    error: { color: "#b3352d", bg: "#fdecea", border: "#f2bdb8" },
    diff: { added: "#dff3e4", removed: "#fde4e2", addedWord: "#b5e3c3", removedWord: "#f9c3be" },
    series: ["#1f6f5c", "#1d5fa8", "#7a4bb0", "#a8326e", "#a1451b", "#6b6413", "#3a6b24", "#4f5b66"],
  },
  dark: {
    text: "#e7ebe8",
    textSecondary: "#b4bdb8",
    textTertiary: "#939d98",
    surface: "#191d1b",
    layout: "#111412",
    raised: "#212623",
    onFill: "#0d1411",
    controlBorder: "#77817b",
    hairline: "#38403b",
    primary: {
      color: "#4fb396",
      bg: "#16302a",
      bgHover: "#1c3d35",
      border: "#2c5c50",
      hover: "#66c2a8",
      active: "#7fd0b9",
    },
    info: { color: "#7ab4ee", bg: "#14263a", border: "#27486b" },
    success: { color: "#5fc792", bg: "#15301f", border: "#285a3c" },
    warning: { color: "#e0b055", bg: "#33270f", border: "#5f4a1c" },
    error: { color: "#f48d85", bg: "#3a1a18", border: "#6d302c" },
    diff: { added: "#12351f", removed: "#43201d", addedWord: "#1c5a34", removedWord: "#6d2f2a" },
    series: ["#4fb396", "#7ab4ee", "#b99af0", "#ee8fbd", "#f0a172", "#c9bd4e", "#8fc96f", "#a9b4bf"],
  },
};

const SEEDS = ["colorPrimary", "colorInfo", "colorLink", "colorSuccess", "colorWarning", "colorError"] as const;

/** The algorithm of antd shifts seed colours and derives grey tints from them. This one keeps the seeds as they are. */
function keepSeeds(algorithm: typeof theme.defaultAlgorithm): typeof theme.defaultAlgorithm {
  return (seed) => {
    const tokens = algorithm(seed);
    for (const name of SEEDS) tokens[name] = seed[name];
    return tokens;
  };
}

const ALGORITHMS = { light: keepSeeds(theme.defaultAlgorithm), dark: keepSeeds(theme.darkAlgorithm) };

function tintTokens(name: "Info" | "Success" | "Warning" | "Error", { color, bg, border }: Tint) {
  return { [`color${name}`]: color, [`color${name}Bg`]: bg, [`color${name}Border`]: border };
}

export function themeConfig(dark: boolean, reducedMotion = false, compact = false): ThemeConfig {
  const palette = PALETTES[dark ? "dark" : "light"];
  const { primary, error, onFill } = palette;
  return {
    algorithm: ALGORITHMS[dark ? "dark" : "light"],
    hashed: false,
    zeroRuntime: import.meta.env.PROD, // the build generates the styles: antd-styles.ts
    token: {
      colorPrimary: primary.color,
      colorPrimaryBg: primary.bg,
      colorPrimaryBgHover: primary.bgHover,
      colorPrimaryBorder: primary.border,
      colorPrimaryHover: primary.hover,
      colorPrimaryActive: primary.active,
      colorLink: primary.color,
      colorLinkHover: primary.hover,
      colorLinkActive: primary.active,
      ...tintTokens("Info", palette.info),
      ...tintTokens("Success", palette.success),
      ...tintTokens("Warning", palette.warning),
      ...tintTokens("Error", error),
      colorTextBase: palette.text,
      colorText: palette.text,
      colorTextSecondary: palette.textSecondary,
      colorTextTertiary: palette.textTertiary,
      colorTextDescription: palette.textTertiary,
      colorTextPlaceholder: palette.textTertiary,
      colorTextLightSolid: onFill,
      colorBgBase: palette.surface,
      colorBgContainer: palette.surface,
      colorBgElevated: palette.raised,
      colorBgLayout: palette.layout,
      colorBorder: palette.controlBorder,
      colorBorderSecondary: palette.hairline,
      colorSplit: palette.hairline,
      colorBgSpotlight: dark ? "#343b37" : "#1d2421",
      fontFamily: FONT,
      fontFamilyCode: CODE,
      fontSize: 14,
      borderRadius: 6,
      borderRadiusLG: 10,
      wireframe: false,
      motion: !reducedMotion,
      motionDurationFast: "0.1s",
      motionDurationMid: "0.15s",
      motionDurationSlow: "0.18s",
    },
    components: {
      Button: {
        primaryShadow: "none",
        defaultShadow: "none",
        dangerShadow: "none",
        primaryColor: onFill,
        dangerColor: onFill,
      },
      Table: { headerBg: "transparent", headerSplitColor: "transparent", cellPaddingBlockSM: compact ? 6 : 11 },
      Layout: { bodyBg: "transparent", siderBg: "transparent" },
      Segmented: { trackPadding: 3 },
      Tooltip: { colorTextLightSolid: "#ffffff" },
    },
  };
}
