// Settings › Devices: the browsers in which you are signed in.

import { App, Button } from "antd";
import { formatDateTime } from "../state/format";
import { useAppState, useClient, useQuery } from "../state/hooks";
import type { DeviceShape } from "../wire";
import { QueryResult } from "./view";

export default function DeviceSettings() {
  const client = useClient();
  const { principal } = useAppState();
  const { message: toast, modal } = App.useApp();
  const query = useQuery("devices.list", {});
  const canWrite = principal?.scopes.includes("write") ?? false;
  const revoke = async (devices: readonly DeviceShape[]) => {
    try {
      for (const { id } of devices) await client.request("devices.revoke", { id });
    } catch (error) {
      toast.error((error as Error).message);
    }
    query.reload();
  };
  const confirmAll = (others: readonly DeviceShape[]) =>
    modal.confirm({
      title: others.length === 1 ? "Sign out 1 other device?" : `Sign out ${others.length} other devices?`,
      content: "They have to sign in with an access token again.",
      okText: "Sign out",
      okButtonProps: { danger: true },
      cancelText: "Cancel",
      onOk: () => revoke(others),
    });
  return (
    <QueryResult query={query} what="devices">
      {({ devices }) => {
        const others = devices.filter(({ current }) => !current);
        return (
          <div className="panel stack">
            <ul className="devices">
              {devices.map((device) => (
                <li className="setting" key={device.id}>
                  <div>
                    <strong>
                      {device.name}
                      {device.current && " · this device"}
                    </strong>
                    <p className="muted">
                      Signed in {formatDateTime(device.createdAt)}, last used {formatDateTime(device.seenAt)}
                    </p>
                  </div>
                  {canWrite && (
                    <Button aria-label={`Sign out ${device.name}`} onClick={() => void revoke([device])}>
                      Sign out
                    </Button>
                  )}
                </li>
              ))}
            </ul>
            {devices.length === 0 && <p className="muted">No browser is signed in.</p>}
            {canWrite && others.length > 0 && (
              <div>
                <Button danger onClick={() => confirmAll(others)}>
                  Sign out everywhere else
                </Button>
              </div>
            )}
            {!canWrite && <p className="muted">You can view this but not change it.</p>}
          </div>
        );
      }}
    </QueryResult>
  );
}
