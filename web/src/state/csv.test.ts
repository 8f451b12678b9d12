import { expect, it } from "vitest";
import { parseCsv } from "./csv";

it("CSV is split at separators outside of quotes, and numeric columns are found", () => {
  expect(parseCsv('name,count\r\n"Ana, B.",2\n"say ""hi""",3.5\n')).toEqual({
    header: ["name", "count"],
    rows: [
      ["Ana, B.", "2"],
      ['say "hi"', "3.5"],
    ],
    numeric: [1],
  });
  expect(parseCsv("a;b\n1;x")).toMatchObject({ header: ["a", "b"], numeric: [0] });
  expect(parseCsv("")).toEqual({ header: [], rows: [], numeric: [] });
});
