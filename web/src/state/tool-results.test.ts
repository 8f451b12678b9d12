import { expect, it } from "vitest";
import { extractImages, imageUrl } from "./images";
import { appendLine, EMPTY_OUTPUT, lastLines, MAX_OUTPUT_LENGTH, type OutputBuffer } from "./tool-output";

const image = { type: "image", media_type: "image/png", data: "aGk=" };

it("images are found at any depth and replaced by a note", () => {
  expect(extractImages(image)).toEqual({
    rest: "(image/png, 3 bytes)",
    images: [{ mediaType: "image/png", data: "aGk=", name: "" }],
  });
  const { rest, images } = extractImages({
    printed: "x",
    plots: [
      { ...image, title: "Sales" },
      { type: "image", mimeType: "image/webp", data: "aGk=" },
    ],
  });
  expect(rest).toEqual({ printed: "x", plots: ["(image/png, 3 bytes)", "(image/webp, 3 bytes)"] });
  expect(images.map((each) => each.name)).toEqual(["Sales", "plots"]);
});

it("results without images are unchanged", () => {
  for (const value of [null, 1, "x", [1], { type: "image" }, { type: "image", media_type: 3, data: "x" }])
    expect(extractImages(value)).toEqual({ rest: value, images: [] });
});

it("only safe raster images have a URL", () => {
  expect(imageUrl({ mediaType: "image/png", data: "aGk=" })).toBe("data:image/png;base64,aGk=");
  const unsafe: [string, string][] = [
    ["image/svg+xml", "aGk="],
    ["text/html", "aGk="],
    ["image/png", 'x" onerror="y'],
    ["image/png,", "aGk="],
    ["image/png", "A".repeat(6_000_004)],
  ];
  for (const [mediaType, data] of unsafe) expect(imageUrl({ mediaType, data })).toBeNull();
});

it("output is kept up to a limit and cut at a line break", () => {
  let output: OutputBuffer = EMPTY_OUTPUT;
  for (let number = 0; number < 20_000; number += 1) output = appendLine(output, `line ${number}`);
  expect(output.truncated).toBe(true);
  expect(output.text.length).toBeGreaterThan(MAX_OUTPUT_LENGTH / 2);
  expect(output.text.length).toBeLessThanOrEqual(2 * MAX_OUTPUT_LENGTH);
  expect(output.text).toMatch(/^line \d+\n/);
  expect(lastLines(output.text, 2)).toBe("line 19998\nline 19999");
  expect([lastLines("a", 3), lastLines("a\nb\n", 1), lastLines("", 2)]).toEqual(["a", "b", ""]);
  expect(appendLine(appendLine(EMPTY_OUTPUT, "a\n"), "b").text).toBe("a\nb");
});
