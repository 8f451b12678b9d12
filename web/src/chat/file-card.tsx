// A file of a message: its name and size, the beginning of a text, and a link to save it or to open a PDF.

import { DownloadOutlined, FileOutlined, FilePdfOutlined } from "@ant-design/icons";
import { memo, useEffect, useState } from "react";
import { ReadText } from "../components/exact-text";
import { toSafeLine } from "../state/unicode-safety";
import type { FilePart } from "../wire";

const PREVIEW_LINES = 6;
const PDF = "application/pdf";

export const FileCard = memo(function FileCard({ file }: { file: FilePart }) {
  const name = toSafeLine(file.name ?? "file", 80);
  const data = file.data ?? "";
  const isPdf = file.mediaType === PDF;
  const text = /^text\/|json$/.test(file.mediaType) ? previewOf(data) : "";
  const url = useObjectUrl(data, isPdf ? PDF : "application/octet-stream");
  return (
    <div className="file file-card">
      <div className="row">
        {isPdf ? <FilePdfOutlined aria-hidden /> : <FileOutlined aria-hidden />}
        <strong className="truncate">{name}</strong>
        {data && <span className="muted">{formatSize(Math.floor(data.length * 0.75))}</span>}
        {url && isPdf && (
          <a href={url} target="_blank" rel="noopener noreferrer" aria-label={`Open ${name}`}>
            Open
          </a>
        )}
        {url && (
          <a href={url} download={file.name ?? "file"} aria-label={`Download ${name}`} title="Download">
            <DownloadOutlined aria-hidden />
          </a>
        )}
      </div>
      {text && (
        <pre tabIndex={0}>
          <ReadText text={text} />
        </pre>
      )}
    </div>
  );
});

function decode(data: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
}

function previewOf(data: string): string {
  try {
    const text = new TextDecoder().decode(decode(data.slice(0, 4000)));
    return text.split("\n").slice(0, PREVIEW_LINES).join("\n").trimEnd();
  } catch {
    return "";
  }
}

function useObjectUrl(data: string, type: string): string {
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!data) return;
    let created = "";
    try {
      created = URL.createObjectURL(new Blob([decode(data)], { type }));
    } catch {
      return; // not base64: there is nothing to save
    }
    setUrl(created);
    return () => URL.revokeObjectURL(created);
  }, [data, type]);
  return url;
}

function formatSize(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}
