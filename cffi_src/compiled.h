/* The compiled settings: what gpushim/settings_file.py writes, trusted only where nobody else could have. */
#pragma once

enum freshness { NONE, STALE, FRESH };

enum freshness read_settings(void);
int each_record(int (*use)(const char *key, const char *value));
