"""The main job: four streaming queries over real data, killed twice, compared row for row with batch."""
