// Text fields of the chat. They are native elements: antd's fields would double the size of the first view.

import { type ComponentProps, useLayoutEffect, useRef } from "react";

interface FieldProps {
  status?: "" | "error";
  onPressEnter?: () => void;
}

export function Input({
  status = "",
  onPressEnter,
  className = "",
  onKeyDown,
  ...rest
}: ComponentProps<"input"> & FieldProps) {
  return (
    <input
      {...rest}
      className={`text-field ${className}`}
      aria-invalid={status === "error" || rest["aria-invalid"]}
      onKeyDown={(event) => {
        onKeyDown?.(event);
        if (event.key === "Enter" && !event.nativeEvent.isComposing) onPressEnter?.();
      }}
    />
  );
}

interface Rows {
  minRows: number;
  maxRows: number;
}

interface TextAreaProps extends ComponentProps<"textarea"> {
  status?: FieldProps["status"];
  autoSize?: Rows;
}

/** A text area that grows with its text, within limits. */
function TextArea({ status = "", autoSize, className = "", ...rest }: TextAreaProps) {
  const element = useRef<HTMLTextAreaElement>(null);
  const { value } = rest;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the height follows the text
  useLayoutEffect(() => {
    if (element.current && autoSize) fitHeight(element.current, autoSize);
  }, [value, autoSize?.minRows, autoSize?.maxRows]);
  return (
    <textarea
      {...rest}
      ref={element}
      rows={autoSize?.minRows}
      className={`text-field ${className}`}
      aria-invalid={status === "error" || rest["aria-invalid"]}
    />
  );
}

Input.TextArea = TextArea;

export function fitHeight(element: HTMLTextAreaElement, { minRows, maxRows }: Rows): void {
  const style = getComputedStyle(element);
  const row = Number.parseFloat(style.lineHeight) || 20;
  const frame = element.offsetHeight - element.clientHeight;
  const padding = Number.parseFloat(style.paddingTop) + Number.parseFloat(style.paddingBottom);
  element.style.height = "auto";
  const content = Math.min(Math.max(element.scrollHeight, row * minRows + padding), row * maxRows + padding);
  element.style.height = `${Math.ceil(content + frame)}px`;
  element.style.overflowY = element.scrollHeight > content + 1 ? "auto" : "hidden";
}
