// Files a person adds to a message: read, and pictures made small enough to travel.

import { newId } from "../state/ids";
import type { FilePart, ImagePart } from "../wire";

export interface Attachment {
  id: string;
  name: string;
  part: ImagePart | FilePart;
  size: number;
}

const PICTURES = /^image\/(png|jpeg|gif|webp)$/;
const WIDEST = 1600;

export class TooLarge extends Error {}

/** `room` is how many bytes still fit into a message. */
export async function attachmentOf(file: File, room: number): Promise<Attachment> {
  const blob = PICTURES.test(file.type) && file.size > 300_000 ? await smaller(file) : file;
  const data = await base64(blob);
  if (data.length > room)
    throw new TooLarge(
      `${file.name} is too large: a message carries at most ${Math.floor((room * 3) / 4096)} KB more.`,
    );
  const mediaType = blob.type || "application/octet-stream";
  const part: ImagePart | FilePart = PICTURES.test(mediaType)
    ? { type: "image", mediaType, data }
    : { type: "file", name: file.name, mediaType, data };
  return { id: newId(), name: file.name, part, size: data.length };
}

async function smaller(file: File): Promise<Blob> {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, WIDEST / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(picture.width * scale);
  canvas.height = Math.round(picture.height * scale);
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(blob ?? file), "image/jpeg", 0.82));
}

function base64(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onerror = () => reject(reader.error ?? new Error("The file cannot be read."));
    reader.onload = () => resolve(String(reader.result).split(",", 2)[1] ?? "");
    reader.readAsDataURL(blob);
  });
}
