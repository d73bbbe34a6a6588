/* Children that may never come back, for questions to a driver that may be sick. */
#pragma once

long now_ms(void);
void die_after(int ms);
int start_lost_child(int pipe_end, int ms);
