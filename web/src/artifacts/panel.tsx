// The artifact panel beside the chat, and on small screens a sheet: one artifact as a preview or as code.

import { type PointerEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { ActionButton, CopyButton } from "../components/buttons";
import { HighlightedCode } from "../markdown/code";
import { useMediaQuery } from "../state/hooks";
import type { Artifact, ArtifactKind, CodeSource } from "./artifacts";
import { toArtifact } from "./artifacts";
import "../styles/artifacts.css";
import { CsvChart, CsvTable, HtmlPreview, SvgPreview } from "./preview";

type PanelView = "preview" | "table" | "chart" | "code";

const VIEWS: Record<ArtifactKind, PanelView[]> = {
  html: ["preview", "code"],
  svg: ["preview", "code"],
  csv: ["table", "chart", "code"],
  code: ["code"],
};
const VIEW_NAMES: Record<PanelView, string> = { preview: "Preview", table: "Table", chart: "Chart", code: "Code" };
const FILES: Record<ArtifactKind, string> = { html: "html", svg: "svg", csv: "csv", code: "txt" };

interface Props {
  artifacts: Artifact[];
  source: CodeSource;
  onSelect: (source: CodeSource) => void;
  onClose: () => void;
}

export default function ArtifactPanel({ artifacts, source, onSelect, onClose }: Props) {
  const found = artifacts.find(
    ({ language, versions }) => language === source.language && versions.includes(source.code),
  );
  const artifact = found ?? toArtifact(source);
  const [chosen, setChosen] = useState<PanelView>();
  if (!artifact) return null;
  const views = VIEWS[artifact.kind];
  const view = chosen && views.includes(chosen) ? chosen : (views[0] ?? "code");
  const version = artifact.versions.indexOf(source.code);
  const open = (next: Artifact | undefined, index = -1) => {
    const code = next?.versions.at(index);
    if (next && code !== undefined) onSelect({ language: next.language, code });
  };
  return (
    <PanelFrame title={artifact.title} onClose={onClose}>
      <header className="artifact-header">
        <h3 tabIndex={-1} title={artifact.title}>
          {artifact.title}
        </h3>
        <CopyButton text={source.code} label="Copy artifact" />
        <ActionButton
          icon="download"
          label="Download artifact"
          onClick={() => download(source.code, `${fileName(artifact.title)}.${FILES[artifact.kind]}`)}
        />
        <ActionButton icon="close" label="Close artifact" onClick={onClose} />
      </header>
      <div className="artifact-controls">
        {artifacts.length > 1 && found && (
          <select
            aria-label="Artifact"
            value={artifacts.indexOf(found)}
            onChange={(event) => open(artifacts[Number(event.target.value)])}
          >
            {artifacts.map((each, index) => (
              <option key={index} value={index}>
                {each.title}
              </option>
            ))}
          </select>
        )}
        {artifact.versions.length > 1 && (
          <select aria-label="Version" value={version} onChange={(event) => open(artifact, Number(event.target.value))}>
            {artifact.versions.map((_, index) => (
              <option key={index} value={index}>
                Version {index + 1} of {artifact.versions.length}
              </option>
            ))}
          </select>
        )}
        {views.length > 1 && (
          <span className="segments" role="group" aria-label="View">
            {views.map((each) => (
              <button type="button" key={each} aria-pressed={each === view} onClick={() => setChosen(each)}>
                {VIEW_NAMES[each]}
              </button>
            ))}
          </span>
        )}
      </div>
      <div className="artifact-body markdown" data-view={view}>
        <ArtifactView artifact={artifact} code={source.code} view={view} onTable={() => setChosen("table")} />
      </div>
    </PanelFrame>
  );
}

interface ViewProps {
  artifact: Artifact;
  code: string;
  view: PanelView;
  onTable: () => void;
}

function ArtifactView({ artifact: { kind, language, title }, code, view, onTable }: ViewProps) {
  if (view === "table") return <CsvTable code={code} />;
  if (view === "chart") return <CsvChart code={code} onTable={onTable} />;
  if (view === "code") return <HighlightedCode code={code} language={language} streaming={false} />;
  return kind === "svg" ? (
    <SvgPreview code={code} title={title} />
  ) : (
    <HtmlPreview key={code} code={code} title={title} />
  );
}

function download(text: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(title: string): string {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "artifact";
}

interface FrameProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
}

/** What Escape closes before the panel; a sheet closes itself. */
const UPPER_LAYERS = ".ant-modal, .ant-drawer-open, .ant-dropdown-open, .editing, dialog[open]";

/** A panel at the side; a modal sheet where the window is too narrow for both. The focus returns to what opened it. */
function PanelFrame({ title, onClose, children }: FrameProps) {
  const isSheet = useMediaQuery("(max-width: 1000px)");
  const element = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(DEFAULT_WIDTH);
  useEffect(() => {
    const opener = document.activeElement;
    const sheet = isSheet ? (element.current as HTMLDialogElement) : undefined;
    sheet?.showModal();
    element.current?.querySelector("h3")?.focus();
    return () => {
      sheet?.close();
      if (opener instanceof HTMLElement) opener.focus();
    };
  }, [isSheet]);
  useEffect(() => {
    const closeOnEscape = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented || document.querySelector(UPPER_LAYERS)) return;
      event.preventDefault(); // or it also stops the answer
      onClose();
    };
    document.addEventListener("keydown", closeOnEscape);
    return () => document.removeEventListener("keydown", closeOnEscape);
  }, [onClose]);
  if (isSheet)
    return (
      <dialog
        ref={element as never}
        className="artifact-panel sheet"
        aria-label={`Artifact: ${title}`}
        onClose={onClose}
      >
        {children}
      </dialog>
    );
  return (
    <aside ref={element} className="artifact-panel" aria-label={`Artifact: ${title}`} style={{ width }}>
      <ResizeHandle width={width} onChange={setWidth} />
      {children}
    </aside>
  );
}

const DEFAULT_WIDTH = 480;
const MIN_WIDTH = 320;
const KEY_STEP = 40;

function ResizeHandle({ width, onChange }: { width: number; onChange: (width: number) => void }) {
  const resize = (wanted: number) => onChange(Math.round(Math.max(MIN_WIDTH, Math.min(wanted, innerWidth * 0.6))));
  const drag = (event: PointerEvent<HTMLElement>) => {
    if (event.currentTarget.hasPointerCapture(event.pointerId)) resize(innerWidth - event.clientX);
  };
  return (
    <div
      className="resize-handle"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the artifact panel"
      aria-valuenow={width}
      aria-valuemin={MIN_WIDTH}
      tabIndex={0}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={drag}
      onKeyDown={({ key }) => {
        if (key === "ArrowLeft") resize(width + KEY_STEP);
        if (key === "ArrowRight") resize(width - KEY_STEP);
      }}
    />
  );
}
