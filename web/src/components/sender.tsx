// The field in which a message is written: a text area that grows, with controls above and below it.

import { type KeyboardEvent, type ReactNode, type Ref, useImperativeHandle, useLayoutEffect, useRef } from "react";
import { fitHeight } from "./input";

export interface SenderHandle {
  focus: () => void;
}

interface Props {
  ref?: Ref<SenderHandle>;
  value: string;
  placeholder: string;
  disabled: boolean;
  header?: ReactNode;
  footer: ReactNode;
  onChange: (text: string) => void;
  onKeyDown: (event: KeyboardEvent<HTMLTextAreaElement>) => unknown;
  onPasteFile: (files: FileList) => void;
}

const ROWS = { minRows: 1, maxRows: 10 };

export function Sender({ ref, value, placeholder, disabled, header, footer, ...on }: Props) {
  const area = useRef<HTMLTextAreaElement>(null);
  useImperativeHandle(ref, () => ({ focus: () => area.current?.focus() }), []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the height follows the text
  useLayoutEffect(() => {
    if (area.current) fitHeight(area.current, ROWS);
  }, [value]);
  return (
    <div className="sender">
      {header}
      <textarea
        ref={area}
        rows={ROWS.minRows}
        value={value}
        placeholder={placeholder}
        aria-label={placeholder}
        disabled={disabled}
        onChange={(event) => on.onChange(event.target.value)}
        onKeyDown={on.onKeyDown}
        onPaste={(event) => {
          const { files } = event.clipboardData;
          if (files.length === 0) return;
          event.preventDefault();
          on.onPasteFile(files);
        }}
      />
      {footer}
    </div>
  );
}
