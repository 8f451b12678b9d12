/** Return a random 128-bit id. `crypto.randomUUID` is missing on pages served over plain HTTP, such as in a LAN. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
