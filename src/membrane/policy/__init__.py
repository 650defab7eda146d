"""Pure: text to policy, policy and question to verdict."""
