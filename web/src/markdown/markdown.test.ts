import type { Token } from "marked";
import { expect, it } from "vitest";
import { safeUrl } from "./links";
import { closeOpenMarks, parseMarkdown } from "./markdown";

it("links are limited to web and mail addresses", () => {
  expect(["https://a.b/c", "mailto:a@b.c"].map(safeUrl)).toEqual(["https://a.b/c", "mailto:a@b.c"]);
  for (const unsafe of [
    "javascript:x",
    " JAVASCRIPT:x",
    "data:text/html,x",
    "/c/x",
    "#token=x",
    "file:///etc/passwd",
    "blob:x",
    "java\tscript:x",
    "x",
  ])
    expect(safeUrl(unsafe)).toBeNull();
});

it("open marks at the end of a streamed text are closed", () => {
  expect(closeOpenMarks("some **bold")).toBe("some **bold**");
  expect(closeOpenMarks("some `code")).toBe("some `code`");
  expect(closeOpenMarks("```py\nx = **y")).toBe("```py\nx = **y");
  expect(closeOpenMarks("a **b** c")).toBe("a **b** c");
});

it("formulas are found, amounts of money are not", () => {
  const formulas = (text: string): string[] => {
    const found: string[] = [];
    const collect = (tokens: Token[]): void => {
      for (const token of tokens) {
        if (token.type === "math") found.push(token.text as string);
        if ("tokens" in token && token.tokens) collect(token.tokens);
      }
    };
    collect(parseMarkdown(text));
    return found;
  };
  expect(formulas("The area is $\\pi r^2$, and \\(x_1\\).")).toEqual(["\\pi r^2", "x_1"]);
  expect(formulas("$$\n\\int_0^1 x\n$$\n\nand\n\n\\[a\\]")).toEqual(["\\int_0^1 x", "a"]);
  expect(formulas("It costs $5 and $6, or $5-$6, and `$x$`.")).toEqual([]);
});
