// Uploads a file to the gateway over HTTP, which reports progress, unlike a WebSocket. The cookie authenticates it.

import { toSentence } from "../state/format";

export interface UploadedFile {
  uploadId: string;
  name: string;
  bytes: number;
}

/** Upload a file; `onProgress` receives the share that was sent, from 0 to 1. */
export function uploadFile(file: File, onProgress: (share: number) => void): Promise<UploadedFile> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", `/api/uploads?name=${encodeURIComponent(file.name)}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => onProgress(event.total ? event.loaded / event.total : 0);
    request.onload = () => {
      if (request.status === 201) resolve(JSON.parse(request.responseText) as UploadedFile);
      else reject(new Error(errorMessage(request)));
    };
    request.onerror = () => reject(new Error("The gateway is unreachable."));
    request.send(file);
  });
}

function errorMessage(request: XMLHttpRequest): string {
  try {
    const { error } = JSON.parse(request.responseText) as { error: { message: string } };
    return toSentence(error.message);
  } catch {
    return `The gateway refused the upload (${request.status}).`;
  }
}
