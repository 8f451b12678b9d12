import { expect, it } from "vitest";
import { added, type Lines, MOST, NOTHING, tailOf } from "./lines";
import { addressOf, parted } from "./pictures";

const picture = { type: "image", media_type: "image/png", data: "aGk=" };

it("pictures are found wherever they stand, and the rest stays readable", () => {
  expect(parted(picture)).toEqual({
    rest: "(image/png, 3 bytes)",
    pictures: [{ kind: "image/png", data: "aGk=", name: "" }],
  });
  const { rest, pictures } = parted({
    printed: "x",
    plots: [
      { ...picture, title: "Sales" },
      { type: "image", mimeType: "image/webp", data: "aGk=" },
    ],
  });
  expect(rest).toEqual({ printed: "x", plots: ["(image/png, 3 bytes)", "(image/webp, 3 bytes)"] });
  expect(pictures.map((each) => each.name)).toEqual(["Sales", "plots"]);
});

it("what is no picture is left as it is", () => {
  for (const value of [null, 1, "x", [1], { type: "image" }, { type: "image", media_type: 3, data: "x" }])
    expect(parted(value)).toEqual({ rest: value, pictures: [] });
});

it("only pictures that can do nothing but be seen have an address", () => {
  expect(addressOf({ kind: "image/png", data: "aGk=" })).toBe("data:image/png;base64,aGk=");
  for (const [kind, data] of [
    ["image/svg+xml", "aGk="],
    ["text/html", "aGk="],
    ["image/png", 'x" onerror="y'],
    ["image/png,", "aGk="],
    ["image/png", "A".repeat(6_000_004)],
  ])
    expect(addressOf({ kind: kind!, data: data! })).toBeNull();
});

it("lines are kept up to a limit, and cut where a line begins", () => {
  let lines: Lines = NOTHING;
  for (let number = 0; number < 20_000; number += 1) lines = added(lines, `line ${number}`);
  expect(lines.cut).toBe(true);
  expect(lines.text.length).toBeGreaterThan(MOST / 2);
  expect(lines.text.length).toBeLessThanOrEqual(2 * MOST);
  expect(lines.text).toMatch(/^line \d+\n/);
  expect(tailOf(lines.text, 2)).toBe("line 19998\nline 19999");
  expect([tailOf("a", 3), tailOf("a\nb\n", 1), tailOf("", 2)]).toEqual(["a", "b", ""]);
  expect(added(added(NOTHING, "a\n"), "b").text).toBe("a\nb");
});
