// Link to another view. A real anchor, so that it can be opened in a new tab; a plain click does not reload the page.

import type { AnchorHTMLAttributes, MouseEvent } from "react";
import { navigate, type Route, routePath } from "../layout/router";

type Props = AnchorHTMLAttributes<HTMLAnchorElement> & { to: Route };

export function RouteLink({ to, onClick, ...rest }: Props) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    navigate(to);
  };
  return <a href={routePath(to)} onClick={follow} {...rest} />;
}
