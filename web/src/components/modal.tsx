// Dialog of the chat. antd draws it; it is loaded when the first one opens.

import type { ModalProps } from "antd";
import { lazy, Suspense } from "react";

const Host = lazy(() => import("./modal-host"));

export function Modal(props: ModalProps) {
  return (
    <Suspense>
      <Host {...props} />
    </Suspense>
  );
}
