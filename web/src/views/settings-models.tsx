// Settings › Models: the models that can be used.

import { Tag } from "antd";
import { useQuery } from "../state/hooks";
import { QueryResult } from "./view";

export default function ModelSettings() {
  const models = useQuery("models.list", {});
  return (
    <>
      <h2 className="section-title">Models</h2>
      <QueryResult query={models}>
        {(result) => (
          <ul className="stack">
            {result.models.map((model) => (
              <li key={model.id} className="row">
                <span>{model.id}</span>
                {!model.available && <Tag>Not available</Tag>}
              </li>
            ))}
          </ul>
        )}
      </QueryResult>
    </>
  );
}
