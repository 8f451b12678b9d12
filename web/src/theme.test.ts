import { readFileSync } from "node:fs";
import { theme } from "antd";
import { describe, expect, it } from "vitest";
import { PALETTES, type Palette, themeConfig } from "./theme";

function luminance(color: string): number {
  const channels = [1, 3, 5].map((start) => Number.parseInt(color.slice(start, start + 2), 16) / 255);
  const [red = 0, green = 0, blue = 0] = channels.map((value) =>
    value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(first: string, second: string): number {
  const [light = 0, dark = 0] = [luminance(first), luminance(second)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

const TINTS = ["primary", "info", "success", "warning", "error"] as const;

/** Every pair of a text colour and a background that the page uses. */
function textPairs(palette: Palette): [string, string][] {
  const { text, textSecondary, textTertiary, surface, layout, raised, onFill, primary, error, diff } = palette;
  return [
    ...[text, textSecondary, textTertiary].flatMap((color): [string, string][] =>
      [surface, layout, raised].map((background) => [color, background]),
    ),
    ...TINTS.flatMap((name): [string, string][] => [
      [palette[name].color, palette[name].bg],
      [palette[name].color, surface],
      [palette[name].color, layout],
      [text, palette[name].bg],
      [textSecondary, palette[name].bg],
    ]),
    [text, primary.bgHover],
    [primary.color, primary.bgHover],
    ...[primary.color, primary.hover, primary.active, error.color, ...palette.series].map((fill): [string, string] => [
      onFill,
      fill,
    ]),
    ...Object.values(diff).map((background): [string, string] => [text, background]),
  ];
}

describe.each(["light", "dark"] as const)("%s theme", (mode) => {
  const palette = PALETTES[mode];

  it("text has a contrast of at least 4.5", () => {
    const weak = textPairs(palette).filter(([color, background]) => contrast(color, background) < 4.5);
    expect(weak).toEqual([]);
  });

  it("borders of controls and chart series have a contrast of at least 3", () => {
    const weak = [palette.controlBorder, ...palette.series].filter((color) => contrast(color, palette.surface) < 3);
    expect(weak).toEqual([]);
  });

  it("antd uses the colours as they are", () => {
    const tokens = theme.getDesignToken(themeConfig(mode === "dark"));
    expect(tokens).toMatchObject({
      colorPrimary: palette.primary.color,
      colorPrimaryBg: palette.primary.bg,
      controlItemBgActive: palette.primary.bg,
      colorInfo: palette.info.color,
      colorInfoBg: palette.info.bg,
      colorSuccess: palette.success.color,
      colorSuccessBg: palette.success.bg,
      colorWarning: palette.warning.color,
      colorWarningBg: palette.warning.bg,
      colorError: palette.error.color,
      colorErrorBg: palette.error.bg,
      colorTextDescription: palette.textTertiary,
      colorText: palette.text,
      colorBorder: palette.controlBorder,
      colorBgContainer: palette.surface,
    });
  });

  it("the style sheet defines the same colours", () => {
    const css = readFileSync(new URL("./styles/base.css", import.meta.url), "utf8");
    const block = css.split(mode === "dark" ? ':root[data-theme="dark"] {' : ":root {")[1]?.split("}")[0] ?? "";
    const variables = Object.fromEntries(
      [...block.matchAll(/--([a-z0-9-]+): (#[0-9a-f]{6});/g)].map((m) => [m[1], m[2]]),
    );
    expect(variables).toMatchObject({
      text: palette.text,
      "text-muted": palette.textSecondary,
      "text-faint": palette.textTertiary,
      surface: palette.surface,
      "surface-sidebar": palette.layout,
      "surface-raised": palette.raised,
      border: palette.hairline,
      "border-strong": palette.controlBorder,
      accent: palette.primary.color,
      "accent-soft": palette.primary.bg,
      "accent-hover": palette.primary.bgHover,
      "accent-border": palette.primary.border,
      "on-fill": palette.onFill,
      ...Object.fromEntries(
        (["info", "success", "warning", "error"] as const).flatMap((name) => [
          [name, palette[name].color],
          [`${name}-soft`, palette[name].bg],
          [`${name}-border`, palette[name].border],
        ]),
      ),
      "diff-added": palette.diff.added,
      "diff-removed": palette.diff.removed,
      "diff-added-word": palette.diff.addedWord,
      "diff-removed-word": palette.diff.removedWord,
      ...Object.fromEntries(palette.series.map((color, index) => [`series-${index}`, color])),
    });
  });
});
