"""`atlas acp` as a program of the fork server, which loads these modules once for all tests."""

import sys

import acp

import atlas_agents.app.serve
import atlas_agents.cli.acp
import atlas_agents.storage.sqlite
from atlas_agents.cli import main

LOADED = (acp, atlas_agents.app.serve, atlas_agents.cli.acp, atlas_agents.storage.sqlite)

if __name__ == "__main__":
    sys.argv[0] = "atlas"
    main()
