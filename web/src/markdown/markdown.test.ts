import { expect, it } from "vitest";
import { safeUrl } from "./links";
import { closeOpenMarks } from "./markdown";

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
