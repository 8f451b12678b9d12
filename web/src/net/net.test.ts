import { expect, it } from "vitest";
import { Backoff } from "./connection";
import { describeFailure, tokenFromFragment } from "./sign-in";

it("the backoff doubles up to a limit", () => {
  const backoff = new Backoff(() => 1);
  expect(Array.from({ length: 7 }, () => backoff.next())).toEqual([250, 500, 1000, 2000, 4000, 8000, 8000]);
  backoff.reset();
  expect(backoff.next()).toBe(250);
});

it("a token is read from the fragment", () => {
  expect(tokenFromFragment("#token=abc")).toBe("abc");
  expect(tokenFromFragment("#other=1&token=a%2Bb")).toBe("a+b");
  expect(["", "#", "#token=", "#/c/x"].map(tokenFromFragment)).toEqual([null, null, null, null]);
});

it("a failed sign-in says what to do", () => {
  expect(describeFailure(401, null)).toBe("That token isn’t valid.");
  expect(describeFailure(429, "30")).toBe("Too many attempts. Try again in 30 s.");
  expect(describeFailure(503, null)).toContain("503");
});
