// Vite plugin that generates the styles of antd's components once, at build time, instead of in the browser each time
// that a view is opened, which takes a sixth of its CPU time. Each component brings its styles with it; those of all
// components are the style sheet `virtual:antd.css`. The colours and sizes of the theme are custom properties, which
// antd still sets in the browser.

import { createElement, type FunctionComponent, type ReactNode } from "react";
import type { Plugin } from "vite";

const NAME = "virtual:antd.css";
const RESOLVED = `\0${NAME}`;
/** Adds styles before the style sheets of the page, which change some of them. */
const ADD_STYLES = `{
  const added = document.createElement("style");
  added.textContent = STYLES;
  document.head.insertBefore(added, document.head.querySelector("link[rel='stylesheet']"));
}`;
const STYLE_MODULE = /[\\/]antd[\\/]es[\\/].*[\\/]style[\\/]/;
const STYLE_HOOKS = new Set(["genStyleHooks", "genSubStyleComponent", "genComponentStyleHook"]);
/** The list of styles that a page rendered on a server would bring with it. */
const SERVER_RENDERING = /\.data-ant-cssinjs-cache-path\{[^}]*\}/;
/** Bundled with other components, but not drawn on the page; the menu of a dropdown has the styles of `Dropdown`. */
const NOT_DRAWN = new Set([
  ...["Addon-Addon", "Grid-Grid", "Input-OTP", "Menu-Menu", "Notification-Notification", "Notification-PurePanel"],
  ...["Pagination-bordered", "Tree-Tree"],
]);

/** Render each component that the page uses: it registers its styles. Return them by their name, such as `Button-Button`
 * and `Modal-confirm`; those of all components have no name. */
async function generate(): Promise<Map<string, string>> {
  const antd = await import("antd");
  const { createCache, extractStyle, StyleProvider } = await import("@ant-design/cssinjs");
  const { renderToString } = await import("react-dom/server");
  const { Button, Input, Modal, Radio, Space, Tag, message } = antd;
  const simple = [
    ...[antd.Alert, antd.App, antd.AutoComplete, Button, antd.Checkbox, antd.Collapse, antd.Drawer, antd.Dropdown],
    ...[antd.Empty, Input, Input.Password, Input.Search, Input.TextArea, Modal, antd.Pagination, antd.Popover],
    ...[antd.Progress, Radio, Radio.Group, antd.Segmented, antd.Select, antd.Skeleton, Space, antd.Spin, antd.Steps],
    ...[antd.Switch, antd.Table, antd.Tooltip, antd.Upload],
  ] as FunctionComponent[];
  // What lies over the page is not rendered without a document, but these stand for it.
  const confirmation = createElement(Modal._InternalPanelDoNotUseOrYouWillBeFired, { type: "confirm" });
  const notice = createElement(message._InternalPanelDoNotUseOrYouWillBeFired);
  const compact = createElement(Space.Compact, null, createElement(Button));
  const tags = ["success", "blue"].map((color) => createElement(Tag, { key: color, color }));
  const components: ReactNode[] = [
    ...simple.map((each, key) => createElement(each, { key })),
    ...tags,
    compact,
    confirmation,
    notice,
  ];
  const cache = createCache();
  const theme = createElement(antd.ConfigProvider, { theme: { hashed: false } }, ...components);
  renderToString(createElement(StyleProvider, { cache }, theme));
  const generated = new Map<string, string>();
  for (const [key, entry] of cache.cache) {
    const [type, , name = "", prefix] = key.split("%");
    if (type !== "style") continue;
    const one = createCache();
    one.cache.set(key, entry);
    const css = extractStyle(one, { plain: true, types: "style" }).replace(SERVER_RENDERING, "");
    const component = name.includes("-") && prefix?.startsWith("ant-") ? name : "";
    generated.set(component, `${generated.get(component) ?? ""}${css}`);
  }
  return generated;
}

/** A node of a syntax tree, with its place in the code. */
interface Node {
  type: string;
  start: number;
  end: number;
}

interface Call extends Node {
  callee: Node & { name?: string };
  arguments: [Node, Node, ...Node[]];
}

/** Find the calls that register styles: the name of a component, and the function that generates them. */
function* findStyles(node: unknown): Generator<Call> {
  if (typeof node !== "object" || node === null) return;
  const call = node as Call;
  if (call.type === "CallExpression" && STYLE_HOOKS.has(call.callee.name ?? "")) yield call;
  for (const each of Object.values(node)) yield* findStyles(each);
}

/** Return the name of styles as the cache has it: `Button-Button` for `"Button"`, `Modal-confirm` for a list. */
function styleName(argument: string): string {
  const [component = "", part = component] = [...argument.matchAll(/["']([^"']*)["']/g)].map(([, name]) => name);
  return `${component}-${part}`;
}

export function antdStyles(): Plugin {
  let generated: Promise<Map<string, string>> | undefined;
  const registered = new Map<string, string[]>();
  const styles = () => {
    generated ??= generate();
    return generated;
  };
  return {
    name: "antd-styles",
    resolveId: (id) => (id === NAME ? RESOLVED : undefined),
    load: async (id) => (id === RESOLVED ? (await styles()).get("") : undefined),
    /** Replace the functions that generate styles, which the browser does not call, with the styles. */
    async transform(code, id) {
      if (!STYLE_MODULE.test(id)) return undefined;
      const calls = [...findStyles(this.parse(code))];
      const names = calls.map(({ arguments: [{ start, end }] }) => styleName(code.slice(start, end)));
      if (!names.length) return undefined;
      registered.set(id, names);
      const rest = calls.reduceRight(
        (text, { arguments: [, { start, end }] }) => `${text.slice(0, start)}() => []${text.slice(end)}`,
        code,
      );
      const available = await styles();
      const css = names.map((name) => available.get(name) ?? "").join("");
      return { code: css ? `${rest}\n${ADD_STYLES.replace("STYLES", () => JSON.stringify(css))}` : rest, map: null };
    },
    /** Refuse a bundle with a component whose styles are not generated: it would be drawn without. */
    async generateBundle(_, bundle) {
      const available = await styles();
      const modules = Object.values(bundle).flatMap((file) =>
        file.type === "chunk" ? Object.entries(file.modules) : [],
      );
      const missing = modules
        .filter(([, { renderedLength }]) => renderedLength > 0)
        .flatMap(([id]) => registered.get(id) ?? [])
        .filter((name) => !available.has(name) && !NOT_DRAWN.has(name));
      if (missing.length) this.error(`antd-styles.ts does not generate the styles of ${missing.sort().join(", ")}`);
    },
  };
}
