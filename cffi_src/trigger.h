/* Whether config.json may ask for something: looked for as text, without reading it as JSON. */
#pragma once

int asks(int with_settings);
int asks_hook(void);
