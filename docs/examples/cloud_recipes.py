"""Models on Azure, Foundry, Bedrock and Vertex AI: their addresses and credentials."""

import os

from atlas_agents import AnthropicProvider, GeminiProvider, OpenAIProvider, OpenAIResponsesProvider

PROJECT = "https://aiplatform.googleapis.com/v1/projects/our-project/locations/global"
BEDROCK = "https://bedrock-mantle.us-east-1.api.aws"


def entra_token() -> str:
    """azure-identity: `get_bearer_token_provider(DefaultAzureCredential(), "https://ai.azure.com/.default")`."""
    return "a-token-of-entra"


def google_token() -> str:
    """google-auth: `credentials.refresh(Request())` unless `credentials.valid`, then `credentials.token`."""
    return "a-token-of-google"


bedrock_key = os.environ.get("AWS_BEARER_TOKEN_BEDROCK", "a-key-of-bedrock")

providers = [
    # Azure OpenAI: the model is a deployment, and `profile` the model behind it
    OpenAIProvider(
        "our-deployment",
        profile="gpt-5.6",
        base_url="https://our-resource.openai.azure.com/openai/v1/",
        api_key=entra_token,
    ),
    # Claude on Foundry; without `key_header` for a fixed key
    AnthropicProvider(
        "claude-opus-5-5",
        base_url="https://our-resource.services.ai.azure.com/anthropic/",
        api_key=entra_token,
        key_header="Authorization",
    ),
    # Claude on Bedrock
    AnthropicProvider(
        "anthropic.claude-opus-5-5",
        base_url=f"{BEDROCK}/anthropic",
        api_key=bedrock_key,
        key_header="Authorization",
    ),
    # OpenAI's models on Bedrock
    OpenAIResponsesProvider("openai.gpt-5.6", base_url=f"{BEDROCK}/openai/v1", api_key=bedrock_key),
    # Claude on Vertex AI: the address names the model
    AnthropicProvider(
        "claude-opus-5-5",
        base_url=f"{PROJECT}/publishers/anthropic/models/{{model}}:streamRawPredict",
        api_key=google_token,
        key_header="Authorization",
    ),
    # Gemini on Vertex AI
    GeminiProvider("gemini-3.1-pro", base_url=f"{PROJECT}/publishers/google", api_key=google_token),
]
for provider in providers:
    print(type(provider).__name__, provider.model)
