-- fairlock/was_released: whether an acquisition was released already. A key of its own shows that.
-- defines  was_released(memory_key)
local function was_released(memory_key)
  return redis.call('exists', memory_key) == 1
end
