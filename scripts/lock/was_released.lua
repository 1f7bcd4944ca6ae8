-- lock/was_released: whether an acquisition was released already. A set has the numbers of those.
-- defines  was_released(released, number)
local function was_released(released, number)
  return redis.call('sismember', released, number) == 1
end
