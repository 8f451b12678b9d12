// What the model thought, folded away.

import { BulbOutlined, RightOutlined } from "@ant-design/icons";
import { memo, useState } from "react";

export const Thinking = memo(function Thinking({ text, growing }: { text: string; growing: boolean }) {
  const [open, setOpen] = useState(false);
  return (
    <div className="thinking">
      <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
        <BulbOutlined aria-hidden /> {growing ? <span className="shimmer">Thinking</span> : "Thought about it"}
        <RightOutlined className="fold" rotate={open ? 90 : 0} aria-hidden />
      </button>
      {open && <div className="inside">{text}</div>}
    </div>
  );
});
