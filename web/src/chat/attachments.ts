// Attachments of a message: reads files as Base64 and scales down large images.

import { newId } from "../state/ids";
import type { FilePart, ImagePart } from "../wire";

export interface Attachment {
  id: string;
  name: string;
  part: ImagePart | FilePart;
  size: number;
}

const IMAGE_TYPES = /^image\/(png|jpeg|gif|webp)$/;
const SCALE_ABOVE_BYTES = 300_000;
const MAX_IMAGE_EDGE = 1600;

class AttachmentTooLargeError extends Error {}

/** Read a file; throw if its Base64 data is larger than `maxLength`. */
export async function readAttachment(file: File, maxLength: number): Promise<Attachment> {
  const blob = IMAGE_TYPES.test(file.type) && file.size > SCALE_ABOVE_BYTES ? await scaleDown(file) : file;
  const data = await toBase64(blob);
  if (data.length > maxLength) {
    const remaining = Math.max(0, Math.floor((maxLength * 3) / 4096));
    throw new AttachmentTooLargeError(`${file.name} is too large: this message can hold ${remaining} KB more.`);
  }
  const mediaType = blob.type || "application/octet-stream";
  const part: ImagePart | FilePart = IMAGE_TYPES.test(mediaType)
    ? { type: "image", mediaType, data }
    : { type: "file", name: file.name, mediaType, data };
  return { id: newId(), name: file.name, part, size: data.length };
}

async function scaleDown(file: File): Promise<Blob> {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, MAX_IMAGE_EDGE / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(image.width * scale);
  canvas.height = Math.round(image.height * scale);
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(blob ?? file), "image/jpeg", 0.82));
}

function toBase64(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onerror = () => reject(reader.error ?? new Error("The file cannot be read."));
    reader.onload = () => resolve(String(reader.result).split(",", 2)[1] ?? "");
    reader.readAsDataURL(blob);
  });
}
