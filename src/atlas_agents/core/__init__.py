"""The ground floor: values and small tools that every floor above speaks in."""
