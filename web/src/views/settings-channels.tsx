// Settings › Channels: connect a Telegram bot and pair the people who may use it.

import { Alert, App, Button, Input, Space, Tag } from "antd";
import { useState } from "react";
import { FormField } from "../components/form-field";
import { formatDateTime, toSentence } from "../state/format";
import { useClient, useQuery, useResourceReload } from "../state/hooks";
import type { ChannelShape, PairedPerson } from "../wire";
import { QueryResult } from "./view";
import "../styles/admin.css";

export default function ChannelSettings() {
  const channels = useQuery("channels.list", {});
  useResourceReload("channel", channels.reload);
  return (
    <QueryResult query={channels}>
      {(result) =>
        result.channels.length ? (
          result.channels.map((channel) => <Telegram key={channel.id} channel={channel} onChange={channels.reload} />)
        ) : (
          <p className="muted">This gateway has no channels.</p>
        )
      }
    </QueryResult>
  );
}

interface Props {
  channel: ChannelShape;
  onChange: () => void;
}

function Telegram({ channel, onChange }: Props) {
  return (
    <>
      <h2 className="section-title">
        Telegram{" "}
        {channel.source && (
          <Tag color={channel.trouble ? "error" : channel.running ? "success" : "default"}>
            {channel.trouble ? "Not receiving" : channel.running ? "Running" : "Off"}
          </Tag>
        )}
      </h2>
      {channel.trouble && <Alert type="error" showIcon title={toSentence(channel.trouble)} />}
      <BotToken channel={channel} onChange={onChange} />
      {channel.source && <People channel={channel} onChange={onChange} />}
    </>
  );
}

function BotToken({ channel, onChange }: Props) {
  const client = useClient();
  const { message, modal } = App.useApp();
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  if (channel.source === "settings")
    return <p className="muted">The bot token comes from ATLAS_TELEGRAM_TOKEN; change it there.</p>;
  const save = async (value: string) => {
    setBusy(true);
    setError("");
    try {
      const saved = await client.request("channels.put", { id: "telegram", token: value });
      setToken("");
      if (value) message.success(`Connected to @${saved.channel.bot}.`);
      onChange();
    } catch (failure) {
      setError((failure as Error).message);
    } finally {
      setBusy(false);
    }
  };
  const remove = () =>
    modal.confirm({
      title: "Disconnect the Telegram bot?",
      content: "Paired people can no longer reach your agents. They stay paired.",
      okText: "Disconnect",
      okButtonProps: { danger: true },
      onOk: () => save(""),
    });
  return (
    <div className="stack">
      {channel.source === "stored" && (
        <div className="row">
          <span className="grow">Bot @{channel.bot}</span>
          <Button onClick={remove}>Disconnect</Button>
        </div>
      )}
      <FormField
        label={channel.source ? "Replace the bot token" : "Bot token"}
        error={error || undefined}
        hint="From @BotFather. Stored on this computer in a file only you can read. It won't be shown again."
      >
        {(control) => (
          <Space.Compact block>
            <Input.Password {...control} value={token} onChange={(event) => setToken(event.target.value)} />
            <Button type="primary" loading={busy} disabled={!token.trim()} onClick={() => void save(token.trim())}>
              Test and save
            </Button>
          </Space.Compact>
        )}
      </FormField>
    </div>
  );
}

function People({ channel, onChange }: Props) {
  const client = useClient();
  const { message, modal } = App.useApp();
  const [code, setCode] = useState("");
  const [error, setError] = useState("");
  const pair = async () => {
    try {
      const { person } = await client.request("channels.pair", { id: "telegram", code: code.trim() });
      message.success(`${person.name} is paired.`);
      setCode("");
      setError("");
      onChange();
    } catch {
      setError("That code is wrong or expired.");
    }
  };
  const unpair = (person: PairedPerson) =>
    modal.confirm({
      title: `Unpair ${person.name}?`,
      content: "The bot will no longer answer this person. Their chats are kept.",
      okText: "Unpair",
      okButtonProps: { danger: true },
      onOk: () =>
        client
          .request("channels.unpair", { id: "telegram", person: person.id })
          .then(onChange, (failure: Error) => void message.error(failure.message)),
    });
  return (
    <div className="stack">
      <p>
        To pair a person, they send <code>/start</code> to {channel.bot ? <strong>@{channel.bot}</strong> : "the bot"}{" "}
        and tell you the code.
      </p>
      <FormField label="Pairing code" error={error || undefined}>
        {(control) => (
          <Space.Compact>
            <Input
              {...control}
              value={code}
              onChange={(event) => {
                setCode(event.target.value);
                setError("");
              }}
            />
            <Button disabled={!code.trim()} onClick={() => void pair()}>
              Pair
            </Button>
          </Space.Compact>
        )}
      </FormField>
      {(channel.paired?.length ?? 0) > 0 && (
        <ul className="item-list" aria-label="Paired people">
          {channel.paired?.map((person) => (
            <li key={person.id}>
              <div className="item-main">
                <strong className="item-name">{person.name}</strong>
                <span className="muted">
                  {person.username && `@${person.username} · `}
                  {person.since ? `since ${formatDateTime(person.since)}` : ""}
                </span>
              </div>
              <Button aria-label={`Unpair ${person.name}`} onClick={() => unpair(person)}>
                Unpair
              </Button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
