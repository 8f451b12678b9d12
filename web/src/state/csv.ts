// Values separated by commas, semicolons or tabs, with quotes as in RFC 4180.

export interface CsvData {
  header: string[];
  rows: string[][];
  /** Columns in which every value is a number. */
  numeric: number[];
}

export function parseCsv(text: string): CsvData {
  const firstLine = text.split("\n", 1)[0] ?? "";
  const separator = [",", ";", "\t"].sort((a, b) => firstLine.split(b).length - firstLine.split(a).length)[0] ?? ",";
  const [header = [], ...rows] = splitRows(text.replaceAll("\r\n", "\n"), separator);
  const isNumber = (value: string | undefined) => value !== undefined && value !== "" && Number.isFinite(Number(value));
  const numeric = header.flatMap((_, index) =>
    rows.length && rows.every((row) => isNumber(row[index])) ? [index] : [],
  );
  return { header, rows, numeric };
}

function splitRows(text: string, separator: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let value = "";
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const character = text.charAt(at);
    if (quoted) {
      if (character !== '"') value += character;
      else if (text.charAt(at + 1) === '"') value += text.charAt(at++);
      else quoted = false;
    } else if (character === '"' && value === "") quoted = true;
    else if (character === separator || character === "\n") {
      row.push(value);
      value = "";
      if (character === "\n") {
        rows.push(row);
        row = [];
      }
    } else value += character;
  }
  row.push(value);
  rows.push(row);
  return rows.filter((each) => each.length > 1 || each[0] !== "");
}
