// Marker where the older messages were summarised for the model. It opens the summary.

import { CompressOutlined, RightOutlined } from "@ant-design/icons";
import { useState } from "react";
import { Markdown } from "../markdown/markdown";
import { messageText } from "../state/conversation";
import type { MessageShape } from "../wire";

export function Summary({ message }: { message: MessageShape }) {
  const [expanded, setExpanded] = useState(false);
  const covered = (message.metadata?.summary as { messages?: unknown } | undefined)?.messages;
  return (
    <div className="summary">
      <button type="button" aria-expanded={expanded} onClick={() => setExpanded(!expanded)}>
        <CompressOutlined aria-hidden /> {typeof covered === "number" ? `${covered} older messages` : "Older messages"}{" "}
        summarised for the model
        <RightOutlined className="chevron" rotate={expanded ? 90 : 0} aria-hidden />
      </button>
      {expanded && (
        <div className="summary-text">
          <Markdown text={messageText([message])} streaming={false} />
        </div>
      )}
    </div>
  );
}
