// What a form shows when two people edit the same thing, and when it would be left with unsaved changes.

import { Alert, Button, Modal, Space } from "antd";
import { useEffect, useState } from "react";
import { guardRoute } from "../layout/router";
import { type EditForm, listDifferences } from "../state/editing";
import { formatAgo } from "../state/format";
import { useFeedback } from "./feedback";

interface Props<T extends object> {
  form: EditForm<T>;
  /** Labels of the fields in the comparison. */
  labels: Partial<Record<keyof T & string, string>>;
  onSaved?: (() => void) | undefined;
}

/** Says who changed the value in the meantime, and offers to compare, to overwrite and to give in. */
export function EditConflictAlert<T extends object>({ form, labels, onSaved }: Props<T>) {
  const { conflict } = form;
  const [reviewing, setReviewing] = useState(false);
  if (!conflict) return null;
  const who = conflict.changedBy || "Someone";
  const when = conflict.changedAt ? ` ${formatAgo(conflict.changedAt, Date.now())}` : "";
  const what = conflict.value === null ? "removed this" : "changed this";
  const overwrite = () => {
    setReviewing(false);
    void form.overwrite().then((saved) => saved && onSaved?.());
  };
  const discard = () => {
    setReviewing(false);
    form.discard();
  };
  return (
    <>
      <Alert
        type="warning"
        showIcon
        role="alert"
        className="edit-conflict"
        title={
          <>
            <strong>{`${who} ${what}${when}.`}</strong> Your edits are kept.
          </>
        }
        description={
          <Space wrap>
            {conflict.value !== null && <Button onClick={() => setReviewing(true)}>Review both</Button>}
            <Button danger disabled={form.busy} onClick={overwrite}>
              Overwrite
            </Button>
            <Button onClick={discard}>Discard mine</Button>
          </Space>
        }
      />
      <Modal
        open={reviewing}
        title="Review both versions"
        width={820}
        onCancel={() => setReviewing(false)}
        footer={
          <Space wrap>
            <Button onClick={() => setReviewing(false)}>Keep editing</Button>
            <Button onClick={discard}>Discard mine</Button>
            <Button danger type="primary" disabled={form.busy} onClick={overwrite}>
              Overwrite
            </Button>
          </Space>
        }
      >
        {conflict.value !== null && (
          <dl className="edit-differences">
            {listDifferences(conflict.value, form.value).map(({ field, theirs, yours }) => (
              <div key={field}>
                <dt>{labels[field as keyof T & string] ?? field}</dt>
                <dd>
                  <span className="muted">{`${who}:`}</span>
                  <pre>{theirs}</pre>
                </dd>
                <dd>
                  <span className="muted">Yours:</span>
                  <pre>{yours}</pre>
                </dd>
              </div>
            ))}
          </dl>
        )}
      </Modal>
    </>
  );
}

/** Ask before unsaved changes are lost: to another view, to another page or by closing the tab. */
export function useLeaveGuard(dirty: boolean, name: string): void {
  const { modal } = useFeedback();
  useEffect(() => {
    if (!dirty) return;
    const warn = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", warn);
    const removeGuard = guardRoute((leave) => {
      modal.confirm({
        title: `Discard changes to ${name}?`,
        okText: "Discard",
        okButtonProps: { danger: true },
        cancelText: "Keep editing",
        onOk: leave,
      });
    });
    return () => {
      window.removeEventListener("beforeunload", warn);
      removeGuard();
    };
  }, [dirty, name, modal]);
}
