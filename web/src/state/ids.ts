// Names that nobody else gives. `crypto.randomUUID` exists only on secure pages; a gateway in a home network is not one.

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
