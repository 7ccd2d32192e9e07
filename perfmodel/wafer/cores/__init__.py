"""Operations of a node on its cores: tiles, their places, and the instructions of every core."""
