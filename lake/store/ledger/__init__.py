"""What the project has done and published: books under `meta/`, and the contracts that its logs were written with."""
