// A link inside the page: a real one, that can be opened in a new tab, and does not load the page anew.

import type { AnchorHTMLAttributes, MouseEvent } from "react";
import { go, pathOf, type Route } from "./route";

type Props = AnchorHTMLAttributes<HTMLAnchorElement> & { to: Route };

export function Inside({ to, onClick, ...rest }: Props) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return <a href={pathOf(to)} onClick={follow} {...rest} />;
}
