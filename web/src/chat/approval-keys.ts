// Keys that answer an approval: y allows it once, n denies it, x selects it in its stack.

import { type RefObject, useEffect, useRef } from "react";
import { singleKey } from "../state/shortcuts";

/** A card that has just arrived, or moved up, must not take a key that was meant for the one before it. */
const SETTLE_MS = 500;

interface Card {
  element: HTMLElement;
  answer: (allowed: boolean) => void;
}

const cards = new Set<Card>();
let current: HTMLElement | undefined;
let currentSince = 0;

/** The card that has the focus, else the first one on the page. */
function findCurrent(): Card | undefined {
  const all = sortedCards();
  return all.find(({ element }) => element.contains(document.activeElement)) ?? all[0];
}

/** The cards in the order of the page, without one that was just removed from it. */
function sortedCards(): Card[] {
  const shown = [...cards].filter(({ element }) => element.isConnected);
  return shown.sort((a, b) => (a.element.compareDocumentPosition(b.element) & 4 ? -1 : 1));
}

/** Focus the next or the previous card. A person who chose a card may answer it at once. */
export function moveToCard(step: 1 | -1): void {
  const all = sortedCards();
  const index = all.findIndex(({ element }) => element.contains(document.activeElement));
  const next = index < 0 ? all[step > 0 ? 0 : all.length - 1] : all[index + step];
  if (!next) return;
  next.element.focus({ preventScroll: true });
  next.element.scrollIntoView({ block: "nearest" });
  current = next.element;
  currentSince = Number.NEGATIVE_INFINITY;
}

/** The approval that has the focus. */
export function focusedApproval(): string | undefined {
  return document.activeElement?.closest<HTMLElement>("[data-approval]")?.dataset.approval;
}

function updateCurrent(): Card | undefined {
  const card = findCurrent();
  if (card?.element !== current) {
    current = card?.element;
    currentSince = performance.now();
  }
  return card;
}

function handleKeyDown(event: KeyboardEvent): void {
  const key = singleKey(event);
  const card = updateCurrent();
  if (key === "x") {
    card?.element.querySelector<HTMLElement>(".stack-checkbox input")?.click();
    return;
  }
  if (!card || (key !== "y" && key !== "n") || performance.now() - currentSince < SETTLE_MS) return;
  event.preventDefault();
  card.answer(key === "y");
}

/** Let the keys answer a card while it can be answered. */
export function useApprovalKeys(
  card: RefObject<HTMLElement | null>,
  enabled: boolean,
  answer: (allowed: boolean) => void,
): void {
  const latest = useRef(answer);
  latest.current = answer;
  useEffect(() => {
    const element = card.current;
    if (!enabled || !element) return;
    const entry: Card = { element, answer: (allowed) => latest.current(allowed) };
    if (cards.size === 0) {
      window.addEventListener("keydown", handleKeyDown);
      window.addEventListener("focusin", updateCurrent);
    }
    cards.add(entry);
    updateCurrent();
    return () => {
      cards.delete(entry);
      updateCurrent();
      if (cards.size > 0) return;
      window.removeEventListener("keydown", handleKeyDown);
      window.removeEventListener("focusin", updateCurrent);
    };
  }, [card, enabled]);
}
