// Page for addresses that lead nowhere.

import { Button } from "antd";
import { createContext, use } from "react";
import { Icon } from "../components/icons";
import { navigate, newChat } from "./router";

/** Opens the search dialog. */
export const SearchContext = createContext<() => void>(() => undefined);

export function NotFound({ what }: { what: "chat" | "page" }) {
  const openSearch = use(SearchContext);
  return (
    <div className="not-found">
      <span className="icon" aria-hidden>
        <Icon name="missing" />
      </span>
      <h1>{what === "chat" ? "This chat doesn’t exist or was deleted." : "This page doesn’t exist."}</h1>
      <p>
        <Button type="primary" onClick={() => navigate(newChat(), true)}>
          New chat
        </Button>
        <Button onClick={openSearch}>Search chats</Button>
      </p>
    </div>
  );
}
